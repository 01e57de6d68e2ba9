# SPDX-License-Identifier: Apache-2.0
"""The programs in examples/python that need no framework, as a newcomer runs them."""
import json
import signal
import urllib.error
import urllib.request

from conftest import PATIENCE, eventually
from example_programs import needs, start


def asked(address, images):
    """What the server answers; None while it has no version."""
    request = urllib.request.Request(address + "/predict", json.dumps(images).encode())
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        assert error.code == 503 and "no version" in json.load(error)["error"]
        return None


def test_numpy_trainer_and_http_server():
    needs("sklearn")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    _, x, _, y = train_test_split(*load_digits(return_X_y=True), test_size=0.25, random_state=1)
    server = start("numpy_server.py", "--port", "0")
    try:
        address = server.stdout.readline().strip()
        assert asked(address, x.tolist()) is None
        trainer = start("numpy_trainer.py")
        for epoch in range(1, 21):
            assert trainer.stdout.readline().startswith(f"epoch {epoch}: ")
        assert eventually(lambda: (asked(address, x[:1].tolist()) or {}).get("version") == 20)
        _, complaints = trainer.communicate("\n", timeout=PATIENCE)
        assert trainer.returncode == 0, complaints
        answer = asked(address, x.tolist())  # It goes on without its trainer.
        assert (answer["version"], answer["step"]) == (20, 20)
        assert sum(one == two for one, two in zip(answer["digits"], y)) / len(y) > 0.93
        with urllib.request.urlopen(address + "/status", timeout=PATIENCE) as status:
            assert json.load(status)["serving"] == 20
        server.send_signal(signal.SIGINT)
        assert server.wait(PATIENCE) == 0
    finally:
        server.kill()
        server.communicate()
