"""`PostgresSaver` does what plain dicts do, whatever is done to it, reopened in
between.
"""

import pytest
from hypothesis import HealthCheck, settings

from tests.property.saver_model import SaverMachine
from tests.strategies import example_count

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("store_key")]


class PostgresMachine(SaverMachine):
    """A `PostgresSaver` beside plain dicts."""

    server = None

    def make_saver(self):
        from flowpregel.plugins.postgres import PostgresSaver

        self.server.execute("DROP SCHEMA IF EXISTS flowpregel CASCADE")
        return PostgresSaver(self.server.url)

    def reopen(self, saver):
        """Return the store, opened anew."""
        from flowpregel.plugins.postgres import PostgresSaver

        saver.close()
        return PostgresSaver(self.server.url)


@pytest.fixture(scope="module", autouse=True)
def _server(postgres_server):
    PostgresMachine.server = postgres_server


TestPostgresSaverModel = PostgresMachine.TestCase
TestPostgresSaverModel.settings = settings(
    max_examples=example_count(10, 15),
    stateful_step_count=15 if settings.default.max_examples < 100 else 25,
    suppress_health_check=[HealthCheck.too_slow],
)
