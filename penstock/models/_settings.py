"""The settings of a network that do not change its parameters."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a network is regularised and normalised; None stands for the network's own value.

    A network's own values, `models.get(name).settings`, are those of the published code, with one
    exception: batch norm's decay is warmed up, to at most `(1 + step) / (10 + step)`. With
    TF-Slim's decay of 0.9997 the initial statistics take ten thousand steps to fade, and a short
    run would look broken at test time.

    Arguments:
      batch_norm_decay: the decay of batch norm's running statistics, from 0 to 1.
      batch_norm_warmup: False applies `batch_norm_decay` from the first step on, as the published
        code does.
      batch_norm_epsilon: added to the variance.
      batch_norm_group_size: normalise groups of this many examples by their own statistics; None
        for the whole batch.
      unbiased_running_variance: update the running variance with the unbiased variance of the
        batch, `n / (n - 1)` times the biased one, as TensorFlow's fused kernel and torch do.
      dropout: the dropout rate before the last layer.
      drop_path: the drop path rate of the last cell at the end of training (NASNet).
      drop_path_steps: the number of steps over which the drop path rate rises to `drop_path`.
      weight_decay: the coefficient of weight decay in the loss of `models.classifier`.

    Raises:
      ValueError: a value is out of range.

    >>> Settings(batch_norm_decay=0.9).over(Settings(batch_norm_decay=0.99, dropout=0.5)).dropout
    0.5
    """

    batch_norm_decay: float | None = None
    batch_norm_warmup: bool | None = None
    batch_norm_epsilon: float | None = None
    batch_norm_group_size: int | None = None
    unbiased_running_variance: bool | None = None
    dropout: float | None = None
    drop_path: float | None = None
    drop_path_steps: int | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        shares = {name: getattr(self, name) for name in ("batch_norm_decay", "dropout")}
        bounds = {name: (value, 0.0, 1.0) for name, value in shares.items()}
        bounds["drop_path"] = (self.drop_path, 0.0, 0.999)
        bounds["batch_norm_group_size"] = (self.batch_norm_group_size, 1.0, float("inf"))
        for name in ("batch_norm_epsilon", "weight_decay", "drop_path_steps"):
            bounds[name] = (getattr(self, name), 0.0, float("inf"))
        for name, (value, least, most) in bounds.items():
            if value is not None and not least <= value <= most:
                raise ValueError(
                    f"models.Settings got {name}={value!r}, expected a number from {least:g} to "
                    f"{most:g}, or None for the network's own."
                )

    def over(self, defaults: Settings) -> Settings:
        """Return these settings, with the values of `defaults` in place of None."""
        mine = dataclasses.asdict(self)
        return dataclasses.replace(
            defaults, **{name: value for name, value in mine.items() if value is not None}
        )
