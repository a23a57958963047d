"""The V2 Open Inference Protocol: what is answered, in JSON and in bytes, and what is refused."""

import asyncio
import base64
import json
import struct

import numpy as np
import pytest

from penstock import serving
from tests.serving.stand_in import Answer, Doubler, ask, binary_request, make_field, tensor

X = np.array([[1, 2, 3], [0.1, -5e-30, 1e30]], np.float32)
INFER = "/v2/models/doubler/infer"


def post(body, *, model=None, path=INFER, **headers) -> Answer:
    async def run():
        app = serving.App({"doubler": model or Doubler()}, limits=serving.Limits(batch_rows=8))
        answer = await ask(app, "POST", path, body, **headers)
        await app.close()
        return answer

    return asyncio.run(run())


def get(path, *, model=None, method="GET", app=None) -> Answer:
    app = app or serving.App({"doubler": model or Doubler()}, limits=serving.Limits(batch_rows=8))
    return asyncio.run(ask(app, method, path))


def outputs(answer: Answer) -> dict[str, np.ndarray]:
    """Return the arrays of an answer, wherever in it they are."""
    assert answer.status == 200, answer
    length = int(answer.headers.get("inference-header-content-length", len(answer.body)))
    head, rest, arrays = json.loads(answer.body[:length]), answer.body[length:], {}
    assert (head["model_name"], head["model_version"]) == ("doubler", "1")
    for output in head["outputs"]:
        assert output["datatype"] == "FP32"
        if "data" in output:
            array = np.array(output["data"], np.float32)
        else:
            size = output["parameters"]["binary_data_size"]
            array, rest = np.frombuffer(rest[:size], np.float32), rest[size:]
        arrays[output["name"]] = array.reshape(output["shape"])
    assert not rest
    return arrays


@pytest.mark.parametrize("is_nested", [False, True])
def test_numbers_of_json_are_answered_bit_for_bit(is_nested):
    body = tensor(X)
    if is_nested:
        body["data"] = X.tolist()
    arrays = outputs(post({"inputs": [body]}))
    assert arrays["y"].tobytes() == (2 * X).tobytes()
    assert arrays["mean"].tobytes() == X.mean(axis=1).tobytes()


def test_tensors_behind_the_json_are_answered_bit_for_bit():
    request = binary_request(("x", "FP32", X.shape, X.tobytes()))
    assert outputs(post(**request))["y"].tobytes() == (2 * X).tobytes()
    request = binary_request(
        ("x", "FP32", X.shape, X.tobytes()), parameters={"binary_data_output": True}
    )
    answer = post(**request)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert outputs(answer)["y"].tobytes() == (2 * X).tobytes()


def test_each_output_has_its_own_form_and_only_what_is_wanted_comes():
    wanted = [{"name": "mean", "parameters": {"binary_data": True}}]
    answer = post({"inputs": [tensor(X)], "outputs": wanted, "id": "7"})
    assert outputs(answer).keys() == {"mean"}
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:length])["id"] == "7"
    wanted.append({"name": "y"})
    assert outputs(post({"inputs": [tensor(X)], "outputs": wanted})).keys() == {"mean", "y"}


@pytest.mark.parametrize("datatype", ["UINT8", "INT8", "UINT16", "INT16", "FP16"])
def test_numbers_that_are_all_numbers_of_the_input_are_taken(datatype):
    x = np.array([[0, 7, 100]])
    arrays = outputs(post({"inputs": [tensor(x, datatype)]}))
    assert arrays["y"].tolist() == [[0, 14, 200]]
    dtype = {"FP16": "float16"}.get(datatype, datatype.lower())
    request = binary_request(("x", datatype, x.shape, x.astype(dtype).tobytes()))
    assert outputs(post(**request))["y"].tolist() == [[0, 14, 200]]


def test_classes_are_named_best_first():
    wanted = [{"name": "y", "parameters": {"classification": 2}}]
    (output,) = post({"inputs": [tensor([[1, 3, 2]])], "outputs": wanted}).json["outputs"]
    assert output == {
        "name": "y",
        "datatype": "BYTES",
        "shape": [1, 2],
        "data": ["6.0:1:dog", "4.0:2:cow"],
    }


@pytest.mark.parametrize("kind", ["image", "text"])
def test_examples_are_prepared_by_the_model(kind):
    model = Doubler(kind=kind)
    data = ["abc", "xyz"]
    if kind == "image":
        data = [base64.b64encode(text.encode()).decode() for text in data]
    expected = [[2 * n for n in b"abc"], [2 * n for n in b"xyz"]]
    for shape, form in (([2], data), ([2, 1], [[text] for text in data])):
        body = {"name": "x", "shape": shape, "datatype": "BYTES", "data": form}
        assert outputs(post({"inputs": [body]}, model=model))["y"].tolist() == expected
    elements = b"".join(struct.pack("<I", 3) + text for text in (b"abc", b"xyz"))
    request = binary_request(("x", "BYTES", [2], elements))
    assert outputs(post(**request, model=model))["y"].tolist() == expected
    refused = post(**binary_request(("x", "BYTES", [1], struct.pack("<I", 2) + b"ab")), model=model)
    assert (refused.status, refused.error) == (
        400,
        "x got an example of another length, expected 3.",
    )


def test_name_of_a_file_is_no_image():
    body = {"name": "x", "shape": [1], "datatype": "BYTES", "data": ["/etc/passwd.png"]}
    answer = post({"inputs": [body]}, model=Doubler(kind="image"))
    assert answer.status == 400
    assert "as base64" in answer.error


def test_numbers_that_json_has_not_are_null():
    model = Doubler()
    model.infer_columns = lambda feed: {"y": np.array([[1, np.nan, np.inf]], np.float32)}
    answer = post({"inputs": [tensor(X[:1])], "outputs": [{"name": "y"}]}, model=model)
    assert answer.json["outputs"][0]["data"] == [1, None, None]


def test_metadata_says_what_a_model_takes():
    metadata = get("/v2/models/doubler").json
    assert metadata["versions"] == ["1"]
    about = {"kind": "array"}
    assert metadata["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1, 3], "parameters": about}
    ]
    assert [output["shape"] for output in metadata["outputs"]] == [[-1, 3], [-1]]
    assert metadata["parameters"] == {"max_batch_size": 8, "class_names": ["cat", "dog", "cow"]}
    assert get("/v2/models/doubler/versions/1").json == metadata


def test_output_of_a_whole_batch_has_no_batch_axis_and_no_classes():
    model = Doubler()
    model.outputs = (make_field("largest", (), rows=0), make_field("sums", (3,), rows=0))
    metadata = get("/v2/models/doubler", model=model).json
    assert [output["shape"] for output in metadata["outputs"]] == [[], [3]]
    wanted = [{"name": "sums", "parameters": {"classification": 1}}]
    for sums in (model.outputs[1], make_field("sums", (3,), kind="sequence")):
        model.outputs = (sums,)
        answer = post({"inputs": [tensor(X)], "outputs": wanted}, model=model)
        assert "classification got 1, expected a number of classes" in answer.error


def test_model_without_inputs_is_refused():
    model, other = Doubler(), Doubler()
    model.inputs = ()
    with pytest.raises(ValueError, match="the model 'noise' got no inputs, expected one at least"):
        serving.App({"noise": model})

    async def reload():
        app = serving.App({"doubler": other}, load=lambda name: model)
        answer = await ask(app, "POST", "/v2/repository/models/doubler/load")
        return app, answer

    app, answer = asyncio.run(reload())
    assert "'doubler' got no inputs" in answer.error
    assert app.models == {"doubler": other}


def test_server_tells_of_itself():
    assert get("/v2").json["extensions"] == [
        "binary_tensor_data",
        "classification",
        "model_repository",
    ]
    assert get("/v2/health/live").json == {"live": True}
    assert get("/v2/health/ready").json == {"ready": True}
    assert get("/v2/models/doubler/ready").json == {"name": "doubler", "ready": True}
    index = post(b"", path="/v2/repository/index").json
    assert index == [{"name": "doubler", "version": "1", "state": "READY", "reason": ""}]


def test_infinity_by_name_is_taken():
    answer = post({"inputs": [tensor([[np.inf, 1, 2]])]}).json
    assert answer["outputs"][0]["data"] == [None, 2, 4]


def test_description_of_the_api_has_every_path_and_an_example_of_each_model():
    description = get("/openapi.json").json
    assert description["openapi"] == "3.1.0"
    for path, operations in description["paths"].items():
        for method in operations:
            got = get(path.replace("{name}", "doubler").replace("{version}", "1"), method="PATCH")
            assert got.status == 405
            assert got.headers["allow"] == method.upper()
    infer = description["paths"]["/v2/models/{name}/infer"]["post"]
    examples = infer["requestBody"]["content"]["application/json"]["examples"]
    (example,) = examples["doubler"]["value"]["inputs"]
    assert (example["name"], example["shape"], example["datatype"]) == ("x", [1, 3], "FP32")


GOOD = tensor(X)
REFUSED = {
    "nothing": (b"", "expected JSON"),
    "half of it": (b'{"inputs": [', "expected JSON"),
    "deep": (b"[" * 100_000, "expected JSON"),
    "digits": (b'{"id": ' + b"9" * 5000 + b"}", "expected JSON"),
    "not UTF-8": (b'{"id": "\xff"}', "expected JSON"),
    "a list": ([], "expected an object of JSON"),
    "a number for an id": ({"id": 10**30, "inputs": [GOOD]}, "id got a number of more than 64"),
    "no inputs": ({}, "inputs got nothing, expected a list of tensors"),
    "a number": ({"inputs": [1]}, "inputs got 1, expected objects"),
    "unknown": ({"inputs": [{**GOOD, "name": "xx"}]}, "one of 'x'. Did you mean 'x'?"),
    "twice": ({"inputs": [GOOD, GOOD]}, "expected one tensor for each input"),
    "shape": ({"inputs": [{**GOOD, "shape": [2, -3]}]}, "shape of input 'x' got a list of 2"),
    "axes": ({"inputs": [{**GOOD, "shape": [1] * 70 + [6]}]}, "got a list of 71, expected a list"),
    "empty": (
        {"inputs": [{**GOOD, "shape": [0, 2**39, 2**39], "data": []}]},
        "shape of input 'x' got a list of 3, expected a list of sizes",
    ),
    "no shape": ({"inputs": [{**GOOD, "shape": []}]}, "expected 1 of FP32 for []"),
    "datatype": ({"inputs": [{**GOOD, "datatype": "FLOAT"}]}, "got 'FLOAT', expected FP32"),
    # Which float32 would round.
    **{
        datatype: (
            {"inputs": [tensor([[0, 7, 100]], datatype)]},
            f"datatype of input 'x' got '{datatype}', expected FP32",
        )
        for datatype in ("INT32", "UINT32", "INT64", "UINT64", "FP64")
    },
    "bytes": ({"inputs": [{**GOOD, "datatype": "BYTES"}]}, "It is no image and no text"),
    "data": ({"inputs": [{**GOOD, "data": 3}]}, "data of input 'x' got 3, expected a list"),
    "ragged": ({"inputs": [{**GOOD, "data": [[1, 2], [3]]}]}, "6 of FP32 for [2, 3]"),
    "text": ({"inputs": [{**GOOD, "data": ["1"] * 6}]}, "Some are of the type"),
    "null": ({"inputs": [{**GOOD, "data": [None] * 6}]}, "Some are of the type object"),
    "few": ({"inputs": [{**GOOD, "data": [1, 2]}]}, "They have the shape [2]"),
    "too large": ({"inputs": [{**GOOD, "data": [1e300] * 6}]}, "overflow"),
    "no float": (
        json.dumps({"inputs": [tensor([[-np.inf, 7, 2]])]}).replace("7.0", "1e400").encode(),
        "data of input 'x' got a list of 3, expected 3 of FP32 for [1, 3]. Some are too large.",
    ),
    "byte": ({"inputs": [tensor([[1, 2, 300]], "UINT8")]}, "Some are too large"),
    "not whole": ({"inputs": [tensor([[1.5, 2, 3]], "UINT8")]}, "Some are of the type float64"),
    "wide": ({"inputs": [tensor(np.ones((2, 4)))]}, "got '[2, 4]', expected [-1, 3]"),
    "rows": ({"inputs": [tensor(np.ones((9, 3)))]}, "the batch got '9', expected"),
    "no rows": ({"inputs": [tensor(np.ones((0, 3)))]}, "the batch got '0', expected"),
    "output": ({"inputs": [GOOD], "outputs": [{"name": "z"}]}, "one of 'y', 'mean'"),
    "outputs": ({"inputs": [GOOD], "outputs": 7}, "outputs got 7, expected a list"),
    "classes": (
        {"inputs": [GOOD], "outputs": [{"name": "mean", "parameters": {"classification": 1}}]},
        "of an output with scores",
    ),
    "binary": ({"inputs": [{**GOOD, "data": None}]}, "A tensor has data, or bytes behind"),
    "parameters": ({"inputs": [GOOD], "parameters": []}, "the parameters of the request got a li"),
    "nan": ({"inputs": [tensor([[float("nan"), 1, 2]])]}, "x got nan"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistake_is_answered_with_what_came_and_what_was_expected(name):
    body, expected = REFUSED[name]
    answer = post(body)
    assert answer.status == 400, answer
    assert expected in answer.error


BINARY = {
    "header": ({"inference_header_content_length": "-1"}, "expected a number up to"),
    "long header": ({"inference_header_content_length": "9" * 15}, "expected a number up to"),
    "no number": ({"inference_header_content_length": "a"}, "expected a number up to"),
    "behind": ({"body": b"more"}, "got 4, expected no more bytes than binary_data_size says"),
}


@pytest.mark.parametrize("name", BINARY)
def test_mistake_behind_the_json_is_answered(name):
    changes, expected = BINARY[name]
    request = binary_request(("x", "FP32", X.shape, X.tobytes()))
    request["body"] += changes.get("body", b"")
    request |= {key: value for key, value in changes.items() if key != "body"}
    answer = post(**request)
    assert answer.status == 400
    assert expected in answer.error


def test_sizes_of_binary_tensors_are_checked():
    answer = post(**binary_request(("x", "FP32", (2, 4), X.tobytes())))
    assert "got '24 bytes', expected 32, 8 of FP32 for [2, 4]" in answer.error
    request = binary_request(("x", "BYTES", [1], struct.pack("<I", 3) + b"abc"))
    request["body"] = request["body"].replace(b'"binary_data_size": 7', b'"binary_data_size": 8')
    answer = post(**request, model=Doubler(kind="image"))
    assert "binary_data_size of 'x' got 8, expected at most the 7 bytes" in answer.error
    elements = struct.pack("<I", 2**31) + b"abc"
    answer = post(**binary_request(("x", "BYTES", [1], elements)), model=Doubler(kind="image"))
    assert answer.status == 400
    assert "by the length before them" in answer.error


def test_what_is_not_there_is_said():
    assert get("/v2/models/dobler").error == (
        "the model got 'dobler', expected one of 'doubler'. Did you mean 'doubler'?"
    )
    answers = [get(path) for path in ("/v2/models/doubler/versions/2", "/v3", "/v2/models//infer")]
    assert [answer.status for answer in answers] == [404] * 3
    assert "expected '1', or none" in answers[0].error
    assert "/openapi.json lists" in answers[1].error
    refused = get(INFER)
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    assert get("/v2", method="HEAD").status == 200


def test_names_that_no_address_can_have_are_refused():
    with pytest.raises(ValueError, match="a model got the name 'a/b', expected letters, digits"):
        serving.App({"a/b": Doubler()})
