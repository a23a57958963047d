"""The errors of downloading and converting datasets."""


class DownloadError(OSError):
    """Say that a file could not be downloaded whole, or is not the file it should be."""


class ConversionError(ValueError):
    """Say that an archive or file is not what its dataset should hold."""


class UnsafeArchiveError(ConversionError):
    """Say that an archive would write outside its folder, or more than it may."""
