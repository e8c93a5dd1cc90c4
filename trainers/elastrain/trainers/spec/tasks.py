"""What the built-in tasks are called and take, read from their source: importing them would need torch."""

import ast
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from elastrain.trainers import tasks
from elastrain.trainers.spec.errors import FieldError, did_you_mean, pointer


@cache
def built_in_tasks() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """module -> class -> names of the arguments that it takes."""
    found = {}
    for folder in tasks.__path__:
        for module in pkgutil.iter_modules([folder]):
            source = (Path(folder) / f"{module.name}.py").read_text(encoding="utf-8")
            classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
            found[f"{tasks.__name__}.{module.name}"] = {
                node.name: _arguments(node) for node in classes if _is_task(node)
            }
    return found


def task_faults(path: str, args: Mapping[str, Any]) -> list[FieldError]:
    """What is wrong with a built-in task or its arguments. A user's own task is not looked at here."""
    module, _, name = path.partition(":")
    if not module.startswith(f"{tasks.__name__}."):
        return []
    known = built_in_tasks()
    if name not in known.get(module, {}):
        # compared by what differs, not by the long name that all begin with
        start = len(tasks.__name__) + 1
        short = [f"{place[start:]}:{cls}" for place, classes in known.items() for cls in classes]
        hint = did_you_mean(path[start:], short) or f": there are {', '.join(short)}"
        return [{"pointer": "/task", "detail": f"there is no built-in task {path!r}{hint}"}]
    takes = known[module][name]
    rest = f": it takes {', '.join(takes) or 'nothing'}"
    return [
        {
            "pointer": pointer(["task_args", arg]),
            "detail": f"{name} takes no {arg!r}{did_you_mean(arg, takes) or rest}",
        }
        for arg in args
        if arg not in takes
    ]


def _is_task(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "Task" for base in node.bases)


def _arguments(node: ast.ClassDef) -> tuple[str, ...]:
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            names = [argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)]
            return tuple(name for name in names if name != "self")
    return ()
