"""
The model: what users write, as frozen types, and YAML to types with line numbers. Pure; the only I/O is reading a file.

`load` brings it together: `yaml_source` (text to values with positions) -> `typed` (values to types, by pydantic) ->
`parameters` (each fault's own) -> `experiment_checks`, `inventory_nodes`, `inventory_checks` (what only several values
together make wrong). Everything found goes into one `Source` and comes out as one InputError.
"""
