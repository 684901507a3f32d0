"""The engines as OpenAI's client spells them: ``engine.chat.completions.create(...)``.

::

    create(**fields) ──► JSON ──► App.local() ──► the endpoint's own code ──► objects, or a stream

There is no second implementation: a call is a request of the process to itself, behind the door,
and takes and gives what the endpoint of the same name does. Errors are raised as they are.
"""
