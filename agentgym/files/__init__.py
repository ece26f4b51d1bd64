"""Files that people hand over, read within bounds: text and JSON in `bounded`, YAML in
`plain_yaml`.
"""
