"""The methods: one file per family, pure steps on rows, each opening with the equations it implements."""

from depositum.algorithms.base import ALGORITHMS, About, Algorithm, Mix, Oracle, RoundBased, State, algorithm
from depositum.algorithms.columns import combined, kinds
from depositum.algorithms.deepstorm import DeepStorm, DeepStormState
from depositum.algorithms.depositum import Depositum, DepositumState
from depositum.algorithms.dproxsgt import CDProxSGT, CDProxSGTState, DProxSGT, DProxSGTState
from depositum.algorithms.dpsgd import DPSGD
from depositum.algorithms.dsgt import DSGT
from depositum.algorithms.dsmt import DSMT
from depositum.algorithms.exact_diffusion import D2, LED, ExactDiffusion
from depositum.algorithms.extra import Extra, PgExtra
from depositum.algorithms.fedavg import FedAvg, FedAvgM
from depositum.algorithms.fedda import FastFedDA
from depositum.algorithms.feddr import FedADMM, FedDR
from depositum.algorithms.fedmid import FedDualAvg, FedMiD
from depositum.algorithms.gut import GUT, FedNMUT
from depositum.algorithms.kgt import KGT
from depositum.algorithms.momentum_tracking import HeavyBallGT, MomentumTracking
from depositum.algorithms.prox_dasa import ProxDASA, ProxDASAGT, ProxDASAGTState, ProxDASAState
from depositum.algorithms.proxgt import ProxGTSA, ProxGTSRE, ProxGTSRO, ProxGTState
from depositum.algorithms.quasi_global import QuasiGlobal
from depositum.algorithms.rounds import repeated
from depositum.algorithms.scaffold import Scaffold, ScaffoldM
from depositum.algorithms.schedules import SCHEDULES, Constant, Cosine, Power, Schedule, Step, Stepsize, as_schedule
from depositum.algorithms.sppdm import SPPDM, SPPDMState
from depositum.algorithms.zhang import ZhangComposite

__all__ = [
    "ALGORITHMS",
    "D2",
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
    "DProxSGT",
    "DProxSGTState",
    "DeepStorm",
    "DeepStormState",
    "Depositum",
    "DepositumState",
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
    "ProxGTSA",
    "ProxGTSRE",
    "ProxGTSRO",
    "ProxGTState",
    "QuasiGlobal",
    "RoundBased",
    "SPPDMState",
    "Scaffold",
    "ScaffoldM",
    "Schedule",
    "State",
    "Step",
    "Stepsize",
    "ZhangComposite",
    "algorithm",
    "as_schedule",
    "combined",
    "kinds",
    "repeated",
]
