import gc

import pytest

from quantkit.ir.garbage_collection import garbage_collection_paused


def test_the_collector_pauses_and_goes_on() -> None:
    assert gc.isenabled()
    with garbage_collection_paused():
        assert not gc.isenabled()
        with garbage_collection_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error() -> None:
    @garbage_collection_paused()
    def fails() -> None:
        raise ValueError(gc.isenabled())

    with pytest.raises(ValueError, match="False"):
        fails()
    assert gc.isenabled()


def test_who_switched_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with garbage_collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
