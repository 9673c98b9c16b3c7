"""Float layers whose int8 form takes more time than it saves by the table of costs.

By the table, int8 saves time in proportion to the MACs, and a boundary takes time: small layers between float ops stay
float. The files are the same on every machine. `slow_kernels.py` measures whether this machine agrees.
"""

from dataclasses import replace
from math import inf

from quantkit.quantization.bodies import count_macs_of_run
from quantkit.quantization.precision import policy
from quantkit.quantization.precision.cost import KernelTime, is_estimated, predict_costs
from quantkit.quantization.precision.search import TimeCut
from quantkit.quantization.report.census import infer_sample_shapes
from quantkit.quantization.workflow.trials import Trials


def exclude_costly_kernels(trials: Trials) -> None:
    """Keep the kernels in float whose int8 form takes more time than it saves by the table of costs.

    The loss is not measured: these kernels get the precision of the float model. Layers whose MACs are unknown stay in
    int8. If no layer of known size saves time, the conversion is unchanged: a file without an int8 layer would be a
    mere copy of the float model. The same holds if the times of a runtime of the target are estimates.
    """
    conversion, graph, plan = trials.present, trials.present.graph, trials.present.plan
    if not plan.patterns or is_estimated(conversion.target.runtimes):
        return
    shapes = infer_sample_shapes(graph, trials.samples.sample_shapes)
    costs = predict_costs(graph, plan, shapes, conversion.runtimes)
    layers = [pattern.layer for pattern in plan.patterns]
    unknown = [layer for layer in layers if count_macs_of_run(graph, graph[layer], shapes) is None]
    int8 = dict.fromkeys(unknown, KernelTime(0.0, inf))
    cut = TimeCut(graph, plan, replace(costs, kernels={**costs.kernels, **int8}))
    choice = cut.choose()
    if cut.seconds(frozenset()) - cut.seconds(choice) < policy.MIN_PREDICTED_SAVED * cut.seconds(frozenset()):
        return
    alternative = conversion.cut(choice)
    if any(pattern.layer not in unknown for pattern in alternative.plan.patterns):
        trials.present = alternative
    elif not unknown:
        trials.options.on_message(
            "keep the float model, unless size matters more than time: by the table of costs, no int8 layer saves the "
            "time of its quantize/dequantize boundaries"
        )
