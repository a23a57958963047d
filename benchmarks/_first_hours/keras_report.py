import csv

import matplotlib.pyplot as plt

rows = list(csv.DictReader(open("log.csv")))
for name in ("loss", "val_loss", "accuracy", "val_accuracy"):
    plt.plot([float(row[name]) for row in rows], label=name)
plt.xlabel("epoch")
plt.legend()
plt.savefig("curves.png")
