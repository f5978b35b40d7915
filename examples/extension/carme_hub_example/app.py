"""An app: a page of the session whose program is sent with the session, so that the image needs nothing for it."""

from pathlib import Path

PROGRAM = Path(__file__).with_name("hello.py").read_text()
HELLO = {"title": "Hello", "command": ["{python}", "-c", PROGRAM, "{unix_socket}"]}
