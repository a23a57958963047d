"""The parameters of a live network: by name, to files and back, for inference and tests."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import jax

from penstock import _batches, _parameters
from penstock._batches import FeedOrder
from penstock._interrupts import Interrupts
from penstock._selection import Patterns, Rename, Selection
from penstock.program_builder import ProgramBuilder, State
from penstock.trainer._arguments import scale_of
from penstock.trainer._sources import entries_at
from penstock.trainer._testing import tested


class ParameterAccess(ABC):
    """What a `Trainer` offers of its parameters."""

    builder: ProgramBuilder

    @property
    @abstractmethod
    def _state(self) -> State:
        """The state as it is now."""

    @_state.setter
    @abstractmethod
    def _state(self, state: State) -> None: ...

    about: Mapping[str, Any] = MappingProxyType({})
    """What `save_params` writes beside the parameters, as JSON: their preprocessing for one."""

    _feed_order: FeedOrder | None
    _interrupts: Interrupts

    def infer(self, feed: Mapping[str, Any]) -> Any:
        """Return what `infer_func` returns for a feed of any length, with the live parameters.

        Raises:
          ProgramError: the trainer was made without `infer_func`.
        """
        return self.builder.infer(self._state.variables, feed)

    def test(
        self, reader: Any, feed_order: FeedOrder | None = None, *, averaged: bool = False
    ) -> Any:
        """Return the mean of the metrics over every example of `reader`, in test mode.

        Each example counts once, whatever the batch size and the number of devices. Waits for the
        device once, at the end.

        Arguments:
          averaged: test the moving average of the parameters that the optimizer keeps.

        Returns:
          The program function's structure, with Python floats for scalars; by objective, where
          there are several.

        Raises:
          FeedError: a batch does not fit the inputs the program declares.
          ReaderError: the reader yields nothing.
          ValueError: no optimizer keeps a moving average.
        """
        _batches.check_reader(reader, 1)
        builder = self.builder
        inputs = builder.inputs("test")
        if feed_order is None and set(inputs) <= set(self._feed_order or ()):
            feed_order = self._feed_order
        fields = _batches.Fields(inputs, feed_order, builder.feed_specs)
        state = self._averaged if averaged else self._state
        return tested(builder, state, reader, fields, self._interrupts)

    @property
    def update_scale(self) -> float:
        """What every update of the parameters is multiplied by, 1 at first; may be set.

        It scales the learning rate of any optimizer, and with it a decoupled weight decay.
        Reading it waits for the device. An optimizer that keeps where its updates lead, such as
        `optax.lookahead`, takes no other than 1.
        """
        return float(jax.device_get(self._state.update_scale))

    @update_scale.setter
    def update_scale(self, scale: float) -> None:
        value = scale_of(scale)
        self.builder.check_update_scale(float(scale))
        self._state = self._state._replace(update_scale=self.builder.own(value))

    @property
    def loss_scale(self) -> Any:
        """What the loss is multiplied by for its gradients; by objective, where there are several.

        A dynamic one is read from the state, which waits for the device.
        """
        builder = self.builder
        fixed = builder.options.precision.loss_scale
        live = {name: float(each.scale) for name, each in self._state.loss_scale.items()}
        scales = {name: live.get(name, fixed) for name in builder.objectives}
        return next(iter(scales.values())) if len(scales) == 1 else scales

    @property
    def _averaged(self) -> State:
        """The state with the moving average of its parameters in their place."""
        return self.builder.averaged(self._state)

    @property
    def parameters(self) -> _parameters.Parameters:
        """The parameters and running statistics by name; see `penstock.Parameters`."""
        return _parameters.Parameters(lambda: self._state.variables, self._adopt)

    def _adopt(self, variables: Mapping[str, Any]) -> None:
        self._state = self.builder.adopt(variables, self._state)

    def save_params(self, param_path: str | os.PathLike[str], *, averaged: bool = False) -> None:
        """Write parameters and running statistics to a folder, which is made or overwritten.

        Optimizer state is not part of it. `Inferencer` and `load_params` read it. What `about`
        holds is written into its description.

        Arguments:
          averaged: write the moving average of the parameters that the optimizer keeps.

        Raises:
          ValueError: no optimizer keeps a moving average.
        """
        state = self._averaged if averaged else self._state
        _parameters.save(param_path, state.variables, about=self.about)

    def save_inference_model(self, param_path: str | os.PathLike[str]) -> None:
        """Do what `save_params` does; Fluid's name for it.

        The network itself is not saved: an `Inferencer` gets it from its `infer_func`.
        """
        self.save_params(param_path)

    def load_params(
        self,
        param_path: str | os.PathLike[str],
        *,
        partial: bool = False,
        include: Patterns = None,
        exclude: Patterns = None,
        rename: Rename = None,
        skip_mismatched: bool = False,
    ) -> dict[str, list[str]]:
        """Read parameters and running statistics from a folder; optimizer state is kept.

        Without options every entry must be there and fit. With one, what was loaded and what was
        not is printed.

        Arguments:
          param_path: what `save_params` wrote, a folder of checkpoints (the newest), or one.
          partial: load what fits in name, shape and dtype, and leave the rest as it is.
          include: names of the program to load, `"backbone"` with all that lies under it, or globs
            such as `"*/w"`; the others stay as they are.
          exclude: names not to load, written the same way.
          rename: beginnings of names in the file and what they are called in the program, such as
            `{"old/encoder": "backbone"}`, or a function from name to name.
          skip_mismatched: leave out entries of another shape or dtype, a classifier's last layer
            for one.

        Returns:
          What was `loaded`, and what was not: `excluded`, `missing`, `extra` and `mismatched`.

        Raises:
          FileNotFoundError: there are no parameters at `param_path`.
          UnknownNameError: a pattern or a name to replace matches nothing.
          ParameterError: listing every missing, extra or mismatched entry. Nothing is loaded then.
        """
        selection = Selection(include=include, exclude=exclude, rename=rename)
        selection.check(table := self.builder.parameter_shapes)
        entries = selection.renamed(entries_at(param_path))
        chosen, wanted = selection.of(entries), selection.of(table)
        fitting = _parameters.fitting(chosen, wanted)
        if not partial:
            left = {
                key for key in chosen if skip_mismatched and key in wanted and key not in fitting
            }
            _parameters.check(
                param_path,
                {key: value for key, value in chosen.items() if key not in left},
                {key: value for key, value in wanted.items() if key not in left},
                may_have_extra=False,
                hint="Pass partial=True to load what fits and keep the rest.",
            )
        live = _parameters.flatten(self._state.variables)
        self._adopt(_parameters.nested({**live, **fitting}))
        report = {
            "loaded": sorted("/".join(path) for _, path in fitting),
            "excluded": sorted("/".join(path) for _, path in table.keys() - wanted.keys()),
            **_parameters.differences(chosen, wanted),
        }
        if partial or skip_mismatched or not selection.is_all:
            _print_report(param_path, report)
        return report


def _print_report(param_path: Any, report: Mapping[str, list[str]]) -> None:
    print(f"{len(report['loaded'])} entries loaded from {os.fspath(param_path)}")
    reasons = {
        "excluded": "kept, not asked for",
        "missing": "kept, not in the file",
        "mismatched": "kept, of another shape or dtype in the file",
        "extra": "left in the file, the program has none of that name",
    }
    for kind, reason in reasons.items():
        for line in report[kind]:
            print(f"  {reason}: {line}")
