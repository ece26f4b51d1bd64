"""Parts of an objective: pure functions over tensors, one module a slot.

`tables` and `registry` are what they share; the slots follow in the order of a step: `probes`,
`rewards`, `filters`, `terms`, `combine`, `critic`, `spread`, `reshape`, `anchor`, `ratio`,
`correction`, `bounds`, `gate`, `aggregation`, `regularizers`, `hooks`.
"""
