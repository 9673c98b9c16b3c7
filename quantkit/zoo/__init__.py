"""Known models: their cards, and their files, which are downloaded once and verified."""

from quantkit.zoo.cache import Receipt, cache_folder
from quantkit.zoo.cards import ModelCard, find_card, list_cards
from quantkit.zoo.fetch import FetchedModel, fetch, label_files, locate, locate_member, obtain

__all__ = [
    "FetchedModel",
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
