"""``slurm_conf``: the text of a slurm.conf or slurmdbd.conf with some settings as they are wanted."""

from __future__ import annotations

import re

DOCUMENTATION = r"""
name: slurm_conf
short_description: Set what is wanted in a file of Slurm's, and keep the rest
version_added: 0.2.0
description:
  - Changes only the lines whose settings are not as they are wanted. A setting that is missing is added at the end.
  - What an included file sets is not seen.
positional: wanted
options:
  _input:
    description: The text of slurm.conf or slurmdbd.conf.
    type: string
    required: true
  wanted:
    description:
      - Name to value. A number is the least that is accepted, a larger one stays. A list is what must be among the
        words of the setting, others stay. A text is the value itself.
    type: dict
    required: true
"""

EXAMPLES = r"""
- "{{ text | carme.hub.slurm_conf({'SlurmdTimeout': 900, 'PrivateData': ['jobs', 'usage'], 'JobRequeue': '0'}) }}"
"""

RETURN = r"""
_value:
  description: The new text; the same text where nothing was to change.
  type: string
"""


def slurm_conf(text, wanted):
    """Return the text with the settings; see ``DOCUMENTATION``."""
    lines = text.splitlines()
    for name, value in wanted.items():
        lines = _with(lines, name, value)
    return "".join(f"{line}\n" for line in lines)


def _with(lines, name, value):
    pattern = re.compile(rf"\s*{re.escape(name)}\s*=\s*([^#]*)", re.IGNORECASE)  # Slurm's names have no case
    places = [number for number, line in enumerate(lines) if pattern.match(line)]
    # Where a setting stands twice, Slurm takes the last one.
    now = pattern.match(lines[places[-1]]).group(1).strip() if places else None
    text = _value(now, value)
    if text == now:
        return lines
    new = f"{name}={text}"
    if not places:
        return [*lines, new]
    return [new if number == places[-1] else line for number, line in enumerate(lines)]


def _value(now, value):
    """Return what a setting has to be, which is what it is now where that is enough."""
    if isinstance(value, bool) or not isinstance(value, (int, list, tuple, str)):
        raise ValueError(f"{value!r}: write a number (the least), a list (of words that must be there) or a text")
    if isinstance(value, int):
        return now if now is not None and now.isdigit() and int(now) >= value else str(value)
    if isinstance(value, str):
        return value
    words = [word.strip() for word in (now or "").split(",") if word.strip()]
    have = {word.lower() for word in words}
    if "all" in have:
        return now
    missing = [str(word) for word in value if str(word).lower() not in have]
    return ",".join([*words, *missing]) if missing else now or ""


class FilterModule:
    """The filters of this file."""

    def filters(self):
        """Return the filters by name."""
        return {"slurm_conf": slurm_conf}
