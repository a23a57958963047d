"""`Preprocessing`: how an image becomes a network's input, on the host and then on the device."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np

from penstock._errors import (
    LayerContextError,
    PreprocessingError,
    ProgramError,
    check_int,
    listed,
    message,
    nearest,
)

if TYPE_CHECKING:
    from penstock._program.frame import Frame

HostDtype = Literal["uint8", "float32"]
Sample = TypeVar("Sample", Mapping[Any, Any], tuple[Any, ...])


@dataclass(frozen=True, kw_only=True)
class Preprocessing(abc.ABC):
    """How decoded images become a network's input; `preprocessing.get(name)` returns one.

    Readers run `host`, which crops and resizes each image, in training with its own random numbers.
    Program functions run `device`, which flips, changes colours and normalises whole batches, in
    training with a random key for each row. Between the two, values are in 0..255.

    To write your own, subclass it and implement `crop` and `finish`, and `draw` if `finish` is
    random. Make it a frozen dataclass if it has options. See `preprocessing.register`.

    Arguments:
      dtype: the dtype of the images that `host` returns. `"uint8"` rounds, and is a quarter of the
        bytes of `"float32"`. `None` keeps the dtype that `crop` returns.
    """

    # The split is where the accelerator becomes cheaper: crops and resizes need each image in its
    # own size, flips and colours do not.

    dtype: HostDtype | None = None

    channels: ClassVar[tuple[int, ...]] = (3,)
    """How many channels its images may have."""

    def __post_init__(self) -> None:
        self.check_options(
            {"dtype": self.dtype in (None, *get_args(HostDtype))},
            f"one of {listed(get_args(HostDtype))} or None",
            "It is what readers yield",
            "Leave it out for what is exact",
        )

    @abc.abstractmethod
    def crop(
        self, image: np.ndarray, height: int, width: int, random: np.random.Generator | None
    ) -> np.ndarray:
        """Crop and resize one image, on the host.

        Arguments:
          image: `[H, W, C]` uint8.
          height: height of the result in pixels.
          width: width of the result in pixels.
          random: the generator of this image and epoch; `None` in evaluation.

        Returns:
          `[height, width, C]`, uint8 or float32 in 0..255.
        """

    @abc.abstractmethod
    def finish(self, image: jax.Array, draws: Any) -> jax.Array:
        """Return one image as the network's input, on the device.

        Arguments:
          image: `[height, width, C]` float32 in 0..255.
          draws: what `draw` returned; `None` outside training.
        """

    def draw(self, key: jax.Array) -> object:
        """Return the random numbers that `finish` uses for one image, a pytree of scalars."""
        return None

    def check_size(self, height: int, width: int) -> None:
        """Check that images can be cropped and resized to a size.

        Raises:
          PreprocessingError: a size below 1.
        """
        why = "It is the network's input, in pixels. Pass the model's image size, e.g. 224."
        check_int(f"{self._owner}: a side", min(height, width), 1, why, PreprocessingError)

    def host(
        self,
        image: np.ndarray,
        height: int,
        width: int,
        *,
        is_training: bool,
        random: np.random.Generator | None = None,
    ) -> np.ndarray:
        """Crop and resize one decoded image.

        Arguments:
          image: `[H, W, C]` uint8, RGB, or grayscale if the preprocessing accepts it.
          height: height of the result in pixels.
          width: width of the result in pixels.
          is_training: crop at random.
          random: the generator for the crop; needed in training only.

        Returns:
          `[height, width, C]` uint8 or float32, in 0..255.

        Raises:
          PreprocessingError: the image has another shape or dtype, or is too small; or `random` is
            missing in training.

        >>> from penstock import preprocessing
        >>> photo = np.zeros((375, 500, 3), np.uint8)
        >>> preprocessing.get("inception").host(photo, 224, 224, is_training=False).shape
        (224, 224, 3)
        """
        self._check_image(image)
        if is_training and random is None:
            raise self.error(
                "no random numbers",
                "a numpy Generator",
                "In training every image is cropped at random",
                "Pass random=numpy.random.default_rng(seed); in a reader give `for_training(...)` "
                "as augment=, not as decode=",
            )
        taken = self.crop(image, height, width, random if is_training else None)
        if taken.shape != (height, width, image.shape[2]):
            raise self.error(
                f"an image of shape {list(taken.shape)} from crop",
                f"{[height, width, image.shape[2]]}",
                "A network takes images of one size",
                "Let crop return an image of the given height and width",
            )
        return _as_dtype(taken, self.dtype)

    def device(self, images: jax.Array) -> jax.Array:
        """Flip, change colours and normalise a batch; call it in a program function.

        In the train program, the random numbers of a row depend only on the seed, the step and its
        position in the batch. The test and infer programs only normalise.

        Arguments:
          images: `[B, H, W, C]` of any dtype, in 0..255.

        Returns:
          `[B, H, W, C]` float32.

        Raises:
          LayerContextError: it was called outside a program function.
          ProgramError: `images` is not a batch of images.

        >>> import penstock as ps
        >>> from penstock import layers, preprocessing
        >>> def program():
        ...     return preprocessing.get("lenet").device(layers.data("image", [1, 2, 1]))
        >>> builder = ps.ProgramBuilder(infer_func=program)
        >>> builder.infer(builder.init(), {"image": [[[[0.0], [192.0]]]]}).ravel().tolist()
        [-1.0, 0.5]
        """
        frame = self._frame()
        if images.ndim != 4 or images.shape[-1] not in self.channels:
            raise ProgramError(
                f"{self._owner}.device got an array of shape [B, "
                f"{', '.join(map(str, images.shape[1:]))}], expected [B, H, W, C] with C "
                f"{_join_with_or(self.channels)}. Its operations are on whole images. Declare e.g. "
                f"layers.data('image', shape=[224, 224, {self.channels[-1]}])."
            )
        # Named in every mode, so that automatic names agree between the programs.
        key = frame.layer_key(frame.names.layer("preprocessing", None))
        images = images.astype(jnp.float32)
        if not frame.is_training:
            return jax.vmap(lambda image: self.finish(image, None))(images)
        keys = jax.random.split(key, images.shape[0])
        return jax.vmap(lambda image, key: self.finish(image, self.draw(key)))(images, keys)

    def for_training(
        self, height: int, width: int | None = None, *, entry: str | int = "image"
    ) -> SamplePreprocessing:
        """Return the host part as the `augment=` of a reader.

        Arguments:
          height: height of the images in pixels.
          width: width of the images in pixels, `height` by default.
          entry: the sample's entry that holds the image: a key, or an index for tuples.

        Raises:
          PreprocessingError: images cannot be cropped or resized to that size.

        >>> from penstock import preprocessing
        >>> augment = preprocessing.get("vgg").for_training(224)
        >>> sample = {"image": np.zeros((375, 500, 3), np.uint8), "label": 7}
        >>> augment(sample, np.random.default_rng(0))["image"].shape
        (224, 224, 3)
        """
        return self._bind(height, width, entry, is_training=True)

    def for_evaluation(
        self, height: int, width: int | None = None, *, entry: str | int = "image"
    ) -> SamplePreprocessing:
        """Return the host part as the `decode=` (or `augment=`) of a reader; nothing is random.

        The arguments are those of `for_training`.

        Raises:
          PreprocessingError: images cannot be cropped or resized to that size.

        >>> from penstock import preprocessing
        >>> decode = preprocessing.get("lenet").for_evaluation(28, entry=0)
        >>> image, label = decode((np.zeros((32, 32, 1), np.uint8), 7))
        >>> image.shape, label
        ((28, 28, 1), 7)
        """
        return self._bind(height, width, entry, is_training=False)

    def check_options(
        self, are_right: Mapping[str, bool], expected: str, why: str, remedy: str
    ) -> None:
        """Check options, and raise one error that lists all invalid ones.

        Arguments:
          are_right: maps the name of each field to whether its value is valid.
          expected: what was expected, for the message.
          why: the reason, for the message.
          remedy: what to do, for the message.

        Raises:
          PreprocessingError: an option is invalid.
        """
        wrong = [name for name, is_right in are_right.items() if not is_right]
        if wrong:
            got = ", ".join(f"{name}={getattr(self, name)!r}" for name in wrong)
            raise self.error(got, expected, why, remedy)

    def check_covers(
        self, image: np.ndarray, rows: int, columns: int, height: int, width: int, remedy: str
    ) -> None:
        """Check that a crop lies within an image that was made `rows` x `columns`.

        Raises:
          PreprocessingError: the crop is larger.
        """
        if height > rows or width > columns:
            got = f"an image of {image.shape[0]} x {image.shape[1]}, made {rows} x {columns}"
            why = "The crop must lie within the image"
            raise self.error(got, f"at least {height} x {width}", why, remedy)

    def error(self, got: str, expected: str, why: str, remedy: str) -> PreprocessingError:
        """Return an error whose message names this preprocessing."""
        return PreprocessingError(message(self._owner, got, expected, why, remedy))

    @property
    def _owner(self) -> str:
        return f"preprocessing.{type(self).__name__}"

    def _bind(
        self, height: int, width: int | None, entry: str | int, *, is_training: bool
    ) -> SamplePreprocessing:
        width = height if width is None else width
        self.check_size(height, width)
        return SamplePreprocessing(
            preprocessing=self, height=height, width=width, is_training=is_training, entry=entry
        )

    def _check_image(self, image: object) -> None:
        got, remedy = f"a {type(image).__name__}", "Decode it first, e.g. with readers.image_folder"
        if isinstance(image, np.ndarray):
            got = f"an image of shape {list(image.shape)} and dtype {image.dtype}"
            if image.ndim == 2:
                remedy = "Add the channel axis: image[..., None]"
            elif image.ndim == 4:
                remedy = "Give it single images: a reader's augment= or decode=, not its transform="
            elif image.ndim == 3 and image.size and image.dtype != np.uint8:
                remedy = "Scale to 0..255 and convert: image.round().astype(numpy.uint8)"
            elif image.ndim == 3 and image.size:
                if image.shape[-1] in self.channels:
                    return
                remedy = "Read RGB: channels=3 of image_folder, ImageFeature((None, None, 3))"
        raise self.error(
            got,
            f"[H, W, C] uint8 with C {_join_with_or(self.channels)}",
            "It takes decoded images, RGB or gray, in 0..255",
            remedy,
        )

    def _frame(self) -> Frame:
        # The host part needs no flax, and an `InferenceModel` nothing else.
        from penstock._program.frame import current_frame

        try:
            return current_frame("preprocessing")
        except LayerContextError:
            raise LayerContextError(
                f"{self._owner}.device got called outside a program, expected a call inside a "
                "program function. It reads the mode and the randomness of a program. Call it "
                "where the images are declared; `host` is the part for readers."
            ) from None


@dataclass(frozen=True, kw_only=True)
class SamplePreprocessing:
    """The host part of a preprocessing as a reader's `augment=` or, in evaluation, `decode=`.

    Returned by `Preprocessing.for_training` and `for_evaluation`. It can be pickled, so worker
    processes can run it.

    Arguments:
      preprocessing: the preprocessing.
      height: height of the images that it returns, in pixels.
      width: width of the images that it returns, in pixels.
      is_training: crop at random.
      entry: the sample's entry that holds the image: a key, or an index for tuples.
    """

    preprocessing: Preprocessing
    height: int
    width: int
    is_training: bool
    entry: str | int = "image"

    def __call__(self, sample: Sample, random: np.random.Generator | None = None) -> Sample:
        """Return the sample with its image cropped and resized, `[height, width, C]`.

        Arguments:
          sample: a dict or a tuple.
          random: what a reader passes to `augment`, of this record and epoch.

        Raises:
          PreprocessingError: the sample has no such entry, or the image cannot be preprocessed.
        """
        image = self.preprocessing.host(
            self._find_image(sample),
            self.height,
            self.width,
            is_training=self.is_training,
            random=random,
        )
        if isinstance(sample, Mapping):
            return {**sample, self.entry: image}
        return tuple(image if i == self.entry else leaf for i, leaf in enumerate(sample))

    def _find_image(self, sample: object) -> np.ndarray:
        if isinstance(sample, Mapping):
            if self.entry in sample:
                return sample[self.entry]
            got, hint = f"a sample of {listed(map(str, sample))}", nearest(str(self.entry), sample)
        elif isinstance(sample, tuple):
            if isinstance(self.entry, int) and 0 <= self.entry < len(sample):
                return sample[self.entry]
            got, hint = f"a tuple of {len(sample)}", ""
        else:
            got, hint = f"a sample of type {type(sample).__name__}", ""
        raise PreprocessingError(
            f"preprocessing got {got}, expected a dict or tuple with the entry {self.entry!r}. Its "
            f"image is what is cropped.{hint} Pass entry= to for_training and for_evaluation: a "
            "name, or an index in a tuple."
        )


def _join_with_or(channels: tuple[int, ...]) -> str:
    return " or ".join(map(str, channels))


def _as_dtype(image: np.ndarray, dtype: HostDtype | None) -> np.ndarray:
    if dtype == "uint8" and image.dtype != np.uint8:
        # Bicubic weights are negative in places: values may leave the range.
        return np.clip(np.rint(image), 0, 255).astype(np.uint8)
    return image if dtype is None else image.astype(dtype, copy=False)
