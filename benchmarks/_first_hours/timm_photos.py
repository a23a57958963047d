import pathlib

import timm
import torch
from PIL import Image
from timm.data import create_dataset, create_loader, create_transform
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from torch.nn import functional as F

SIZE = (3, 96, 96)
EPOCHS = 10
model = timm.create_model("mobilenetv2_100", num_classes=2)
photos = create_dataset("", root="photos")
classes = {number: name for name, number in photos.reader.class_to_idx.items()}
train = create_loader(
    photos, SIZE, batch_size=16, is_training=True, num_workers=0, use_prefetcher=False
)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
scheduler = CosineLRScheduler(optimizer, t_initial=EPOCHS)
for epoch in range(EPOCHS):
    model.train()
    for images, labels in train:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    scheduler.step(epoch + 1)
    print(f"epoch {epoch + 1} loss {loss.item():.3f}")
torch.save(model.state_dict(), "photos.pth")

model.eval()
prepare = create_transform(SIZE, is_training=False)
for path in sorted(pathlib.Path("new").iterdir()):
    with torch.no_grad():
        answer = model(prepare(Image.open(path).convert("RGB"))[None]).softmax(1)[0]
    print(path, classes[int(answer.argmax())], f"{answer.max():.1%}")
