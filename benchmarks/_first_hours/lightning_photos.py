import pathlib

import lightning as L
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, random_split
from torchvision import models, transforms
from torchvision.datasets import ImageFolder

prepare = transforms.Compose(
    [
        transforms.Resize((96, 96)),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
augment = transforms.Compose([transforms.RandomHorizontalFlip(), prepare])
photos = ImageFolder("photos", augment)
train, test = random_split(photos, [0.9, 0.1], torch.Generator().manual_seed(0))


class Photos(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = models.resnet18(num_classes=len(photos.classes))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.network(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("accuracy", (self.network(x).argmax(1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    trainer = L.Trainer(max_epochs=5, log_every_n_steps=5)
    model = Photos()
    test_loader = DataLoader(test, batch_size=16)
    trainer.fit(model, DataLoader(train, batch_size=16, shuffle=True), test_loader)
    trainer.validate(model, test_loader)

    model.eval()
    for path in sorted(pathlib.Path("new").iterdir()):
        image = prepare(Image.open(path).convert("RGB"))
        with torch.no_grad():
            answer = model.network(image[None]).softmax(1)[0]
        print(path, photos.classes[answer.argmax()], f"{answer.max():.1%}")
