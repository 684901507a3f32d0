"""OLMo 3: calls as Python writes them, one a line, between tags.

As Ai2's chat templates render it; those of models that think open the reasoning in the prompt.
"""

from pyengine.chat.formats.delimited import Calls, Delimited, Reasoning
from pyengine.chat.formats.format import ChatFormat
from pyengine.chat.formats.python_call import PythonCall

_CALLS = Calls(
    PythonCall(), between="\n", open=("<function_calls>\n",), close=("\n</function_calls>",)
)

OLMO3 = ChatFormat("olmo3", Delimited(_CALLS))
OLMO3_THINKING = ChatFormat("olmo3_thinking", Delimited(_CALLS, Reasoning()))
