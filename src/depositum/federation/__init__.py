"""Federations between organisations: the agreement of the members, and how an organisation becomes one.

The organiser has a certificate authority and writes the agreement; a member has a key that never leaves it, and a
folder with everything it needs to train with its neighbours. How members communicate is the part `peers`.
"""
