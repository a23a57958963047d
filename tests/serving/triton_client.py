"""A program for Triton's own client: asks a server at a port for all that it can be asked for."""

import contextlib
import sys

import numpy as np
import tritonclient.http as client
from tritonclient.utils import InferenceServerException

X = np.array([[1, 2, 3], [0.1, -5e-30, 1e30]], np.float32)


def ask(server, name, data, datatype, *, is_binary=True, outputs=None):
    array = data if isinstance(data, np.ndarray) else np.array(data, object)
    tensor = client.InferInput("x", array.shape, datatype)
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    return server.infer(name, [tensor], outputs=outputs, request_id="7")


def main(port: str) -> None:
    server = client.InferenceServerClient(f"127.0.0.1:{port}", concurrency=8)
    assert server.is_server_live()
    assert server.is_server_ready()
    assert server.is_model_ready("array")
    assert server.is_model_ready("array", "1")
    assert not server.is_model_ready("other")
    assert server.get_server_metadata()["name"] == "penstock"
    assert server.get_model_metadata("array")["inputs"][0]["datatype"] == "FP32"
    assert [model["name"] for model in server.get_model_repository_index()] == ["array", "image"]
    for is_binary in (True, False):
        wanted = client.InferRequestedOutput("y", binary_data=is_binary)
        for outputs in (None, [wanted]):
            answer = ask(server, "array", X, "FP32", is_binary=is_binary, outputs=outputs)
            assert answer.as_numpy("y").tobytes() == (2 * X).tobytes()
            assert answer.get_response()["id"] == "7"
    answer = ask(server, "array", np.array([[1, 2, 255]], np.uint8), "UINT8")
    assert answer.as_numpy("y").tolist() == [[2, 4, 510]]
    assert answer.as_numpy("mean").shape == (1,)
    for is_binary in (True, False):
        best = client.InferRequestedOutput("y", binary_data=is_binary, class_count=2)
        classes = ask(server, "array", X[:1], "FP32", outputs=[best]).as_numpy("y").ravel()
        assert [row if isinstance(row, str) else row.decode() for row in classes] == [
            "6.0:2:cow",
            "4.0:1:dog",
        ]
    assert ask(server, "image", [b"abc"], "BYTES").as_numpy("y").tolist() == [[194, 196, 198]]
    later = [
        server.async_infer("array", [tensor])
        for n in range(20)
        for tensor in [client.InferInput("x", [1, 3], "FP32")]
        if tensor.set_data_from_numpy(np.full((1, 3), n, np.float32))
    ]
    assert [call.get_result().as_numpy("y")[0, 0] for call in later] == [2 * n for n in range(20)]
    server.load_model("array")
    for name, array, datatype in (("array", X[:, :2], "FP32"), ("other", X, "FP32")):
        with contextlib.suppress(InferenceServerException):
            raise AssertionError(ask(server, name, array, datatype))
    server.close()


if __name__ == "__main__":
    main(sys.argv[1])
