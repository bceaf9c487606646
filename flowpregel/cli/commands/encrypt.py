"""``flowpregel encrypt``: encrypt a whole store, under another key, or not any more."""

from __future__ import annotations

import click

from flowpregel.cli.options import json_option, store_option
from flowpregel.cli.output import tell, tell_json
from flowpregel.cli.stores import KEY_FILE, key_in, writing
from flowpregel.errors import ConfigurationError


@click.command()
@click.argument("file", metavar="[KEYFILE]", required=False)
@click.option("--off", is_flag=True, help="Decrypt it.")
@store_option
@json_option
def command(file: str | None, off: bool, store: str | None, as_json: bool) -> None:
    """Encrypt all of a store under the key in KEYFILE, or, with --off, decrypt it.

    The file holds 16, 24 or 32 random bytes. If the store is encrypted now, its
    key is in the file that FLOWPREGEL_ENCRYPTION_KEY_FILE names. Nobody may use it
    meanwhile, and there must be room for a second file.
    """
    if (file is None) is not off:
        raise ConfigurationError("give either the file of the new key, or --off")
    key = None if file is None else key_in(file)
    with writing(store) as saver:
        saver.change_keys(encryption_key=key)
    if as_json:
        tell_json({"encrypted": not off})
    else:
        tell("decrypted" if off else f"encrypted; from now on set {KEY_FILE}={file}")
