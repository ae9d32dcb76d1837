"""A spinner on stderr for solves that take longer than a second."""

from __future__ import annotations

from threading import Lock, Timer
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

DELAY_S = 1.0


class Spinner:
    """Shows what is being solved and for how long; a callback for :func:`mmee_solver.solve`.

    It appears after a second, on a thread of its own, and leaves nothing behind.
    """

    def __init__(self) -> None:
        self.text = "solving"
        self._lock = Lock()
        self._timer = Timer(DELAY_S, self._show)
        self._timer.daemon = True
        self._progress: Progress | None = None
        self._ended = False

    @property
    def shown(self) -> bool:
        """Whether it can be seen."""
        return self._progress is not None

    def __call__(self, name: str, done: int, total: int) -> None:
        """Take note of what is being solved: its name, how many are done, how many there are."""
        with self._lock:
            count = f"{done} of {total}" if total > done + 1 else f"{done}"  # the last may be unknown
            self.text = f"solving {name}" + (f", {count} done" if done else "")
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], description=self.text)

    def __enter__(self) -> Spinner:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._ended = True
            if self._progress is not None:
                self._progress.stop()
                self._progress = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with self._lock:
            if self._ended:
                return
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.add_task(self.text, total=None)
            self._progress.start()
