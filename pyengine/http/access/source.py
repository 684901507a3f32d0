"""The keys of a configuration: from flags, variables and the key file."""

import msgspec

from pyengine.errors import ConfigError
from pyengine.http.access.keys import ApiKey, plain_keys, read_keys
from pyengine.http.access.rates import SLOTS
from pyengine.http.access.rules import AccessRules
from pyengine.settings.server import ServerConfig


class AccessSource:
    """Makes the rules of the door, and makes them again when the key file has changed.

    A name keeps its slot among the measured rates as long as the server runs: what it has used
    counts on after its key or limits were changed.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._slots: dict[str, int] = {}

    def rules(self) -> AccessRules:
        """The rules as configuration and key file are now.

        Raises:
            ConfigError: The file cannot be read, or a key is invalid; no key is shown.
        """
        if not self._config.locked:
            return AccessRules.of(self._config, None)
        keys = plain_keys(self._config.api_key, "api-key")
        if self._config.api_key_file is not None:
            keys += read_keys(self._config.api_key_file)
        return AccessRules.of(self._config, tuple(map(self._with_slot, keys)))

    def _with_slot(self, key: ApiKey) -> ApiKey:
        slot = self._slots.setdefault(key.name, len(self._slots))
        if slot >= SLOTS:
            raise ConfigError(f"there are more than {SLOTS} names of keys", param="api_key_file")
        return msgspec.structs.replace(key, slot=slot)
