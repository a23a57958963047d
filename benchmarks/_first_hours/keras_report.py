import csv

import matplotlib.pyplot as plt

with open("log.csv") as file:
    rows = list(csv.DictReader(file))
for name in ("loss", "val_loss", "accuracy", "val_accuracy"):
    plt.plot([float(row[name]) for row in rows], label=name)
plt.xlabel("epoch")
plt.legend()
plt.savefig("curves.png")
