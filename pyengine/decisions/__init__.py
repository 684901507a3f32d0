"""Questions about an input that are answered by probabilities, and by no text.

::

    input ─┬─ question ─► options as tokens ─► trie: the places where options part
           ├─ question                            │  one prompt for each of them, all behind
           └─ ...                                 ▼  the input, which is computed once
                            answers ◄── log-probabilities of the tokens that may follow

:mod:`pyengine.decisions.questions` has questions and answers, ``wording`` what a model is asked,
``option_trie`` the options, ``plan`` the prompts and what becomes of their results.
"""
