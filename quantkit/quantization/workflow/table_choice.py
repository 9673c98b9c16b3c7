"""Tables of Gather nodes in int8, for example of embeddings: a quarter of their size and of their memory traffic."""

from quantkit.quantization.precision import policy
from quantkit.quantization.precision.decision import COST, INT8, Decision
from quantkit.quantization.targets.capabilities import RuntimeRules
from quantkit.quantization.workflow.trials import Trials

REASON = "a table of {} rows in int8 has a quarter of the size, and each row a scale of its own"


def store_tables(trials: Trials) -> None:
    """Replace the large tables by int8 ones, if the loss hardly grows or stays small."""
    conversion, graph, target = trials.present, trials.present.graph, trials.present.target
    names = list(target.find_tables(graph, conversion.plan)) if isinstance(target, RuntimeRules) else []
    if not names:
        return
    rows = {name: graph[graph[name].inputs[0].node].value.shape[0] for name in names}
    reasons = {name: REASON.format(count) for name, count in rows.items()}
    alternative = conversion.decide({name: Decision(name, INT8, reason, COST) for name, reason in reasons.items()})
    failures = len(trials.failures)
    if trials.is_better(alternative, conversion, policy.MAX_FASTER_LOSS) or (
        len(trials.failures) == failures and trials.is_good(alternative)
    ):
        trials.present = alternative
        first = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        trials.options.on_message(f"the table of {first} is stored in int8: the outputs stay near the float model")
