"""Known models: their cards, and the files behind them, downloaded once and verified."""

from quantkit.zoo.cache import Receipt, cache_folder
from quantkit.zoo.cards import ModelCard, find_card, list_cards
from quantkit.zoo.fetch import Fetched, fetch, label_files, locate, locate_member, obtain

__all__ = [
    "Fetched",
    "ModelCard",
    "Receipt",
    "cache_folder",
    "fetch",
    "find_card",
    "label_files",
    "list_cards",
    "locate",
    "locate_member",
    "obtain",
]
