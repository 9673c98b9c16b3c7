"""Known models: their cards, and the files behind them."""

from quantkit.zoo.cards import ModelCard, find_card, list_cards

__all__ = ["ModelCard", "find_card", "list_cards"]
