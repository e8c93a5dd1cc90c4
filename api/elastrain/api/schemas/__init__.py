"""The items that the API answers with, as the OpenAPI document shows them. Examples are of one job's life.

The service returns plain dicts in exactly these shapes; the models describe them to clients, and tests hold
the two together. Times are RFC 3339 in UTC with `Z`. A number that JSON cannot hold is the text "NaN",
"Infinity" or "-Infinity".
"""
