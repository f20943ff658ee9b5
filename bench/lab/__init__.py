"""The laboratory: strategies compared over one simulated link, in virtual time, with models that really run.

The edge's own loop and the verifier's own code run here, and so do the baselines, over the same models, the
same link and the same devices. What the models say is kept in a store: a run whose rows are all there needs
no model and gives the same result on any machine.
"""
