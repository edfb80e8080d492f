"""Flow control of a connection whose requests are parsed one after the other."""

from uvicorn.protocols.http.flow_control import FlowControl


class OrderedFlow(FlowControl):
    """Reads no more while something that was read waits to be parsed."""

    unparsed = False

    def resume_reading(self) -> None:
        """Read on, unless something waits."""
        if not self.unparsed:
            super().resume_reading()
