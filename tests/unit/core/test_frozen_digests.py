"""Digests of ordinary values and functions stay: records and caches are found by them.

Whoever changes one on purpose changes its line here, and says so in the changelog.
"""

from __future__ import annotations

import pytest

from flowpregel._code.digest import code_digest
from flowpregel._pickling.digest import arguments_digest
from tests.unit.code import code_samples
from tests.unit.core import argument_samples

ARGUMENTS = {
    "numbers": "0853a7ba6904d0b8327281c721778095",
    "texts": "3746d5cf6c458f77ab4c8f2d6b320d66",
    "dict": "1a90e74bcca483353914fa5e9bd3250f",
    "sets": "14da3fcd1ab2a8484dba9dcfc0241227",
    "ordered": "cbb591c592c24278eff7fd5fbef45f5c",
    "default": "2e364c1301f8bc59f01b4c5fe62b7019",
    "counter": "7d738b2e208110765c509a9d4d4aac87",
    "deque": "42ece3148d4dae3765dd1e9b584d4597",
    "enum": "2908a1cc5ae7fa960c6eaf80ce252adb",
    "enum of text": "5821c8acf31096e46c6d158a86db95a9",
    "flag": "eab3ab5fc02ad3bc6ee0ec277dedbb4e",
    "text enum": "935cf50a779e5f4a60790039d02ce670",
    "str enum": "921ac6e113f7ecec3b99c503662f2417",
    "dataclass": "20d80ffdc0aee3c57941c9846f160d7e",
    "slots": "887d7231a9c637ede594df252db80871",
    "plain": "a53c0c72c367bb6996c0d739319943eb",
    "named tuple": "1abffcf9510813947a1293bd53128260",
    "class": "591aeb628f308b4ffc0c12b38f84e3f2",
    "date": "2212c1cda60c45f107a9793598485184",
    "time": "f4575936b002d644879fc3d0481a2b1c",
    "delta": "8ed4eab3a6d52309e30fa2477c0edc12",
    "zone": "a873f6710e8f850241f52bb9a628dc65",
    "decimal": "6454904d520fceba1ca18e122344c9f4",
    "fraction": "64bc8ac26497a83747878a4fe6ab4d66",
    "uuid": "f1363a6258c9b86a07267bdc994e987c",
    "path": "0f518b3638a170c73d963eb567e79901",
    "real path": "04fa425ed04e6c4176c41b5f63881db3",
    "pattern": "71d9a3e02d88763e04834ab64f41b442",
    "range": "7a0460a4b53b60a79ddde440a17bb5b7",
    "slice": "16fdcf6b16ecdefd8fb9d93d69822533",
    "bytearray": "c54deb5bc5457f2f7ddb0d3ac507ef18",
    "view": "fbaf68a54441379b3135ac4952f42393",
    "array": "38cc0ac445159f8da9a74fd5ad5a5c11",
    "address": "432165fa481fc1f63fe19f600c5be0a9",
    "namespace": "f5c3519852d0dd1c8f94ff9ca61f1e71",
    "error": "7abcff05359a35fda27bfa5f04d4ab48",
    "partial": "5ee0fe48eec1befd3e81941d9264b68c",
    "getter": "e8847bf46f241e7849612bdcb9d4d227",
    "builtin": "aba97d7dd90fd84fc42598654f1eed86",
    "method": "725d8e25b0c9a409264379be7a2a1efd",
    "alias": "1a85fb7e6c03cb96f368714790d20adc",
    "function": "9e6a961ab2c95f7e187d23745ea7db63",
    "partial of a function": "98b980286cdfdd602ccc9b8147cd9038",
}
CODE = {
    "clean": "4b0b3d5910dcfa8f33a2232abf4831da",
    "cached": "0cd0a7bbd5388925ab56847e053b42ea",
    "wrapped": "32d02391c996eacedd254119056872c0",
    "everything": "e786bbd604445dd1a5576f1ab490e455",
    "matches": "f04deb462e1dd04dbf70536b475d4386",
    "waits": "e8ebd86129e9501b970c067e19b7affa",
    "Point": "68327ed300895b550681f23d12dff67d",
    "moved": "e70669ab26cb4f86868b029122095f2c",
    "DOUBLE": "7be7232a5a1dc210d5460821698a0c82",
    "twice": "569a4b72bea61201e64d289db8e6ff78",
    "partial": "092b8e223bb8e4a3e7d5edca62a82891",
    "adds": "f9479fe6db09d111b36ab4d3961a7c5a",
    "takes": "8f7a75b1f8188168ad7a67b0908c6044",
    "one": "88f40adadcd2c788e8925e0417da8ed1",
    "two": "cdc2bb91c2a9354c314e8b3b950ba9de",
    "none": "795b4f416ad6d953e2d24967cf1b81c2",
    "Level": "9535e5dd9d02256fbe5389a7b0e23d08",
    "Color": "3b07ff8f267b2f84bef3684023132e77",
    "both": "d000a73db777247d146afff52dd54488",
    "tally": "23ec9861b19d2ab293d05e37964abea0",
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_digest_of_an_ordinary_argument_stays(name: str) -> None:
    """Numbers, texts, containers, arrays of the standard library, data classes,
    functions.
    """
    value = argument_samples.SAMPLES[name]

    assert ARGUMENTS[name] == arguments_digest((value,), {"k": value}, name)


@pytest.mark.parametrize("name", CODE)
def test_the_digest_of_ordinary_code_stays(name: str) -> None:
    """Functions, methods, classes, closures, with the constants that they refer to."""
    assert CODE[name] == code_digest(code_samples.SAMPLES[name]).digest
