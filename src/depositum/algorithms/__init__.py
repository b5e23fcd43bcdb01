"""The methods: one file per family, pure steps on rows; each file starts with the equations it implements."""

from depositum.algorithms.deepstorm import DeepStorm, DeepStormState
from depositum.algorithms.depositum import Depositum, DepositumState
from depositum.algorithms.dfedavgm import DFedAvgM
from depositum.algorithms.directed import DepositumDirected, DirectedState, PushPull, PushPullState
from depositum.algorithms.dproxsgt import CDProxSGT, CDProxSGTState, DProxSGT, DProxSGTState
from depositum.algorithms.dpsgd import DPSGD
from depositum.algorithms.dsgt import DSGT
from depositum.algorithms.dsmt import DSMT
from depositum.algorithms.exact_diffusion import D2, LED, ExactDiffusion
from depositum.algorithms.extra import Extra, PgExtra
from depositum.algorithms.fast_fedda import FastFedDA
from depositum.algorithms.fedavg import FedAvg, FedAvgM
from depositum.algorithms.feddr import FedADMM, FedDR
from depositum.algorithms.fedmid import FedDualAvg, FedMiD
from depositum.algorithms.gut import GUT, FedNMUT
from depositum.algorithms.interface import ALGORITHMS, About, Algorithm, Mix, Oracle, RoundBased, State, algorithm
from depositum.algorithms.kgt import KGT
from depositum.algorithms.mixing_rounds import mix_rounds
from depositum.algorithms.momentum_tracking import HeavyBallGT, MomentumTracking
from depositum.algorithms.prox_dasa import ProxDASA, ProxDASAGT, ProxDASAGTState, ProxDASAState
from depositum.algorithms.prox_dgd import ProxDGD
from depositum.algorithms.proxgt import ProxGTSA, ProxGTSRE, ProxGTSRO, ProxGTState
from depositum.algorithms.quasi_global import QuasiGlobal
from depositum.algorithms.row_parameters import differing_parameters, merge_key, merge_methods, row_parameters
from depositum.algorithms.scaffold import Scaffold, ScaffoldM
from depositum.algorithms.schedules import SCHEDULES, Constant, Cosine, Power, Schedule, Step, Stepsize, as_schedule
from depositum.algorithms.sonata import Sonata, SonataState
from depositum.algorithms.sppdm import SPPDM, SPPDMState
from depositum.algorithms.stepsize_methods import (
    DEFAULT_ALPHA,
    ServerMethod,
    ServerRounds,
    SmoothMethod,
    StepsizeMethod,
    check_server_weights,
)
from depositum.algorithms.zhang_composite import ZhangComposite

__all__ = [
    "ALGORITHMS",
    "D2",
    "DEFAULT_ALPHA",
    "DPSGD",
    "DSGT",
    "DSMT",
    "GUT",
    "KGT",
    "LED",
    "SCHEDULES",
    "SPPDM",
    "About",
    "Algorithm",
    "CDProxSGT",
    "CDProxSGTState",
    "Constant",
    "Cosine",
    "DFedAvgM",
    "DProxSGT",
    "DProxSGTState",
    "DeepStorm",
    "DeepStormState",
    "Depositum",
    "DepositumDirected",
    "DepositumState",
    "DirectedState",
    "ExactDiffusion",
    "Extra",
    "FastFedDA",
    "FedADMM",
    "FedAvg",
    "FedAvgM",
    "FedDR",
    "FedDualAvg",
    "FedMiD",
    "FedNMUT",
    "HeavyBallGT",
    "Mix",
    "MomentumTracking",
    "Oracle",
    "PgExtra",
    "Power",
    "ProxDASA",
    "ProxDASAGT",
    "ProxDASAGTState",
    "ProxDASAState",
    "ProxDGD",
    "ProxGTSA",
    "ProxGTSRE",
    "ProxGTSRO",
    "ProxGTState",
    "PushPull",
    "PushPullState",
    "QuasiGlobal",
    "RoundBased",
    "SPPDMState",
    "Scaffold",
    "ScaffoldM",
    "Schedule",
    "ServerMethod",
    "ServerRounds",
    "SmoothMethod",
    "Sonata",
    "SonataState",
    "State",
    "Step",
    "Stepsize",
    "StepsizeMethod",
    "ZhangComposite",
    "algorithm",
    "as_schedule",
    "check_server_weights",
    "differing_parameters",
    "merge_key",
    "merge_methods",
    "mix_rounds",
    "row_parameters",
]
