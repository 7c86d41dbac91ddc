"""Help texts by click, with options and commands in the sections that they name."""

from typing import Any

import typer

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
_ORDER = {"Arguments": -2, "Required": -1, "Options": 1}


class _Sections:
    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each title: commands first, then parameters."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in getattr(self, "commands", {}).items():
            about, panel = (command.help or "").partition("\n\n")[0], command.rich_help_panel
            title = panel if isinstance(panel, str) else "Commands"
            sections.setdefault(title, []).append((name, about))
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            names, text = parameter.get_help_record(ctx)
            title = "Required" if parameter.required else "Options"
            if parameter.param_type_name == "argument":
                names, title = parameter.metavar, "Arguments"
            title = getattr(parameter, "rich_help_panel", None) or title
            sections.setdefault(title, []).append((names, text))
        for title, rows in sorted(sections.items(), key=lambda each: _ORDER.get(each[0], 0)):
            with formatter.section(title):
                formatter.write_dl(rows)


class HelpCommand(_Sections, typer.core.TyperCommand):
    """A command whose help has sections."""


class HelpGroup(_Sections, typer.core.TyperGroup):
    """A group of commands whose help has sections; `help COMMAND` is `COMMAND --help`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["-h"] * (ctx.parent is not None))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "help":
            args = [*args[1:], "-h"]
        # typer suggests names that resemble a typo, but not those that it begins.
        longer = [repr(name) for name in self.commands if name.startswith(args[0])]
        if longer and args[0] not in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {', '.join(longer)}?")
        return super().resolve_command(ctx, args)
