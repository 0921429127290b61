"""The search for better hyperparameters, and the only room that imports optuna.

One process, the coordinator, holds the study and asks it for points; workers that stay train them. Only the coordinator
reads and writes the study's storage, so no number of workers overshoots the total or draws one point twice.

`space` says what may vary, `study` what a study is about, `sampling` who proposes and who prunes, `ledger` which trials
count, `worker` and `pool` are the processes, `coordinator` runs them, `pictures` draws, `applying` writes params.yaml.
`clusters` and `launching` have whole sweeps run in the jobs of a cluster, and wait for them.
Importing this package imports nothing: a worker sets its threads before numpy and torch load.
"""
