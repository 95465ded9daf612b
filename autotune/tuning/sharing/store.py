"""Store: Optuna's storage of a shared study, in which each call ends within a deadline.

Nothing is repeated here: a call that fails has had an effect or has not, and who called knows how
to find out.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from autotune.tuning.sharing.address import Address

if TYPE_CHECKING:
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial, TrialState


class Store(Protocol):
    """The methods of Optuna's storages that a shared study uses; all storages of Optuna have them.

    Raises:
        OutOfReachError: by each method: it may be tried again, and may have taken effect.
        SharedStudyError: by each method: it may not.
        DuplicatedStudyError: as Optuna does, by ``create_new_study``.
        KeyError: as Optuna does, where there is no such study or trial.
        UpdateFinishedTrialError: as Optuna does, where a trial that is over is changed.
    """

    def create_new_study(
        self, directions: Sequence[StudyDirection], study_name: str | None = None
    ) -> int:
        """Return the number of a new study."""

    def get_study_id_from_name(self, study_name: str) -> int:
        """Return the number of a study."""

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return all attributes of a study."""

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Write an attribute of a study. If two write a new one at once, either may be kept."""

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Return the id of a new trial; within a study, numbers grow in the order of commits."""

    def get_all_trials(
        self,
        study_id: int,
        deepcopy: bool = True,  # noqa: FBT001, FBT002 - as Optuna declares it
        states: Container[TrialState] | None = None,
    ) -> list[FrozenTrial]:
        """Return the trials in order; those that are over are read once."""

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Write an attribute of a trial that is not over."""

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Change the state of a trial that is not over."""

    def remove_session(self) -> None:
        """Close the connection until the next call."""


def open_store(address: Address) -> Store:
    """Connect to a shared study's storage, whose tables are made if they are missing.

    Raises:
        UsageError: The library that talks to it is not installed.
        OutOfReachError: It cannot be reached now.
        SharedStudyError: It refuses.
    """
    raise NotImplementedError
