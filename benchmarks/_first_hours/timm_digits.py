import timm
import torch
from sklearn.datasets import load_digits
from timm.optim import create_optimizer_v2
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
images = F.interpolate(images, size=(32, 32))
dataset = TensorDataset(images, torch.tensor(labels))
train, test = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(0))

model = timm.create_model("resnet18", num_classes=10, in_chans=1)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
for epoch in range(5):
    model.train()
    for x, y in DataLoader(train, batch_size=32, shuffle=True):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1} loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    x, y = test[:]
    print("accuracy", (model(x).argmax(1) == y).float().mean().item())
torch.save(model.state_dict(), "digits.pth")
