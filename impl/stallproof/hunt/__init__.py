"""Hunt: look for scenarios in which a scheduler class breaks the promise, without knowing any beforehand.

``space`` makes and changes scenarios, ``worker`` runs many of them in one engine process, ``signature`` says
what two findings have in common, ``shrink`` makes them small, ``search`` ties these together, ``finding`` is
what is written down.
"""
