"""The parameters of a live network: by name, to files and back, and for inference."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from penstock import _parameters
from penstock.program_builder import ProgramBuilder, State


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

    def infer(self, feed: Mapping[str, Any]) -> Any:
        """Return what `infer_func` returns for a feed of any length, with the live parameters.

        Raises:
          ProgramError: the trainer was made without `infer_func`.
        """
        return self.builder.infer(self._state.variables, feed)

    @property
    def parameters(self) -> _parameters.Parameters:
        """The parameters and running statistics by name; see `penstock.Parameters`."""
        return _parameters.Parameters(lambda: self._state.variables, self._adopt)

    def _adopt(self, variables: Mapping[str, Any]) -> None:
        self._state = self.builder.adopt(variables, self._state)

    def save_params(self, param_path: str | os.PathLike[str]) -> None:
        """Write parameters and running statistics to a folder, which is made or overwritten.

        Optimizer state is not part of it. `Inferencer` and `load_params` read it.
        """
        _parameters.save(param_path, self._state.variables)

    def save_inference_model(self, param_path: str | os.PathLike[str]) -> None:
        """Do what `save_params` does; Fluid's name for it.

        The network itself is not saved: an `Inferencer` gets it from its `infer_func`.
        """
        self.save_params(param_path)

    def load_params(
        self, param_path: str | os.PathLike[str], *, partial: bool = False
    ) -> dict[str, list[str]]:
        """Read parameters and running statistics from a folder; optimizer state is kept.

        Arguments:
          partial: load what fits in name, shape and dtype, and leave the rest as it is.

        Returns:
          What was `missing`, `extra` and `mismatched`, empty lists unless `partial`.

        Raises:
          FileNotFoundError: there are no parameters at `param_path`.
          ParameterError: listing every missing, extra or mismatched entry. Nothing is loaded then.
        """
        table = self.builder.parameter_shapes
        entries = _parameters.read(param_path)
        if not partial:
            hint = "Pass partial=True to load what fits and keep the rest."
            _parameters.check(param_path, entries, table, may_have_extra=False, hint=hint)
        found = _parameters.differences(entries, table)
        fitting = _parameters.fitting(entries, table)
        live = _parameters.flatten(self._state.variables)
        self._adopt(_parameters.nested({**live, **fitting}))
        return found
