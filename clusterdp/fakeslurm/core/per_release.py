"""Values that depend on the release of Slurm: the rows of the table in release.py."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, overload

T = TypeVar("T")


class HasVersion(Protocol):
    @property
    def version(self) -> str: ...


class PerRelease(Generic[T]):
    """A rule that changed between releases. `values`: the rule's value from each release on; the first release must be
    22.05."""

    def __init__(self, values: dict[str, T]):
        self._values = list(values.items())

    @overload
    def __get__(self, release: None, owner: Any) -> PerRelease[T]: ...
    @overload
    def __get__(self, release: HasVersion, owner: Any) -> T: ...
    def __get__(self, release: HasVersion | None, owner: Any) -> PerRelease[T] | T:
        if release is None:
            return self
        return [value for since, value in self._values if since <= release.version][-1]


class Added(PerRelease[str]):
    """Words, such as names of fields, that releases added. The value for a release is all words of this and earlier
    releases."""

    @overload
    def __get__(self, release: None, owner: Any) -> Added: ...
    @overload
    def __get__(self, release: HasVersion, owner: Any) -> str: ...
    def __get__(self, release: HasVersion | None, owner: Any) -> Added | str:
        if release is None:
            return self
        return " ".join(words for since, words in self._values if since <= release.version)

    def ever(self) -> str:
        """Returns the words that any release has."""
        return " ".join(words for _, words in self._values)
