"""A page from its template and the one style sheet; every value is escaped."""

from importlib import resources

import jinja2
from markupsafe import Markup

from tuner.report import text

_FILES = resources.files("tuner.report")


def render(name: str, /, **context: object) -> str:
    """
    The whole page.

    Args:
        name: File of the template, beside this one.
        context: What it shows; a name that is missing is an error.
    """
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_read),
    )
    environment.filters["tight"] = text.tight
    style = Markup(_read("page.css"))  # noqa: S704  # our own file
    return environment.get_template(name).render(css=style, **context)


def _read(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")
