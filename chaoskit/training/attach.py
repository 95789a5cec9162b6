"""`launcher: attach`: a training that somebody else started; it is only watched, and goes on afterwards."""

from chaoskit.training.logged import LoggedTraining


class AttachedTraining(LoggedTraining):
    """Watches the logs from now on; what stands in them already is not this run's."""

    @property
    def launches(self) -> bool:
        """Whether chaoskit starts and ends it: no."""
        return False

    def _launch(self) -> None:
        self._follow(self.setup.log_nodes, whole=False)

    def stop(self) -> None:
        """Stop following; the training goes on."""
        self.watch.stop()
