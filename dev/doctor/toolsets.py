"""The layer `tools`: what TOOLSETS names can be registered, and the model is told of it."""

from __future__ import annotations

import asyncio

from dev.doctor.case import Case, Finding, fail, ok
from dev.doctor.files import describe


def check_tools(case: Case) -> Finding:
    """What TOOLSETS names can be registered, and the model is told of just those tools."""
    from errors import ConfigError
    from main import CAPABILITIES, build_runtime
    from runtime import BUILT_IN
    from tools import LEGAL_NAME

    known = ", ".join([*BUILT_IN, *CAPABILITIES])
    mend = f"{case.origin('TOOLSETS')} takes {known}, and import paths of modules with register(runtime)."
    try:
        runtime = build_runtime(case.settings)
    except ConfigError as error:
        return fail(str(error), mend)
    except Exception as error:
        return fail(f"the toolsets cannot be registered: {describe(error)}", f"Mend that. {mend}")
    registry = [tool.name for tool in runtime.tools]
    told = [str(schema["function"]["name"]) for schema in runtime.tools.schemas()]
    asyncio.run(runtime.close())
    if told != registry:
        return fail(f"the model is told of {told}, registered are {registry}", "Let each schema bear its tool's name.")
    if illegal := [name for name in told if not LEGAL_NAME.fullmatch(name)]:
        return fail(f"no legal names of functions: {', '.join(illegal)}", "Use letters, digits, _ and -, at most 64.")
    found = f"{', '.join(told) or 'none'} from {', '.join(case.settings.toolsets)}"
    if case.settings.max_tool_calls == 0:
        return ok(found, ("but MAX_TOOL_CALLS=0 forbids them", f"Raise {case.origin('MAX_TOOL_CALLS')}."))
    return ok(found)
