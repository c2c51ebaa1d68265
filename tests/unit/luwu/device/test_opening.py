"""Folders of a model: what they go on from, and that records of steps which are undone count no more."""

from dataclasses import replace
from pathlib import Path

import pytest

from coarse.errors import StorageError
from coarse.luwu.device.opening import OpenedFolders
from coarse.luwu.steps import OpenStore
from coarse.luwu.store.commit import Commit, UnitVersion
from coarse.luwu.store.declaration import Declaration
from tests.unit.luwu.device.test_served import declared


def committed(step: int) -> Commit:
    """The record of a step, and of as many commits before it."""
    units = tuple(UnitVersion(step % 2, step, (step,) * num_tensors) for num_tensors in (2, 1, 1))
    return Commit(sequence=step, run="first", step=step, units=units, workers=(b"one", b"other"))


def opened(declaration: Declaration) -> OpenedFolders:
    return OpenedFolders(OpenStore(0, declaration, 2, 0, None), 0, 1)


@pytest.fixture
def declaration(tmp_path: Path) -> Declaration:
    return replace(declared(2), storage=(str(tmp_path),), memory_bytes=1 << 24, run="first")


@pytest.fixture
def trained(declaration: Declaration) -> Declaration:
    """The declaration of a training whose folder has the records of steps 1 and 2."""
    folders = opened(declaration)
    for step in (1, 2):
        folders.folders[0].write_commit(committed(step))
    folders.close()
    return declaration


def test_a_new_folder_is_begun_in_where_going_on_is_only_wished_for(declaration: Declaration) -> None:
    folders = opened(replace(declaration, resume_if_there=True))
    assert folders.resumed is None
    assert folders.folders[0].manifest() is not None
    folders.close()


@pytest.mark.parametrize("wish", ["resume", "resume_if_there"])
def test_the_newest_step_is_gone_on_from(trained: Declaration, wish: str) -> None:
    folders = opened(replace(trained, run="second", **{wish: True}))
    assert folders.resumed == committed(2)
    folders.close()


def test_steps_after_the_one_that_is_gone_on_from_count_no_more(trained: Declaration) -> None:
    for step in (1, None):  # named, and then as the newest that is left
        folders = opened(replace(trained, resume=True, resume_step=step))
        assert folders.resumed == committed(1)
        assert folders.folders[0].commits() == [committed(1)]
        folders.close()


def test_a_training_is_not_begun_over_another(trained: Declaration) -> None:
    with pytest.raises(StorageError, match=r"holds step 2 of a training.*pass resume=True"):
        opened(replace(trained, run="second"))
    with pytest.raises(StorageError, match="holds no step 3 of its run"):
        opened(replace(trained, resume=True, resume_step=3))
