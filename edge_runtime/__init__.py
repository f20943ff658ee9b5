"""The device's side: engines, drafter, outcome tree, resampler, budget and the session loop. No torch."""
