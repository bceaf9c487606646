"""A process that was forked from one with workers has none of them, and can have its
own.
"""

import os

from flowpregel.executors.processes import ProcessExecutor


def test_a_forked_process_can_have_a_pool_of_its_own() -> None:
    with ProcessExecutor(1) as pool:
        assert pool.submit(pow, 2, 3).result(timeout=30) == 8
        if (child := os.fork()) == 0:
            code = 1
            try:
                with ProcessExecutor(1) as own:
                    code = own.submit(pow, 2, 5).result(timeout=20) - 32
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
