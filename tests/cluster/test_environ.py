"""The environment variables of the ranks of a gang."""

from sparkdl.cluster.environ import gang_variables
from sparkdl.cluster.plan import Plan, Role


def test_an_evaluator_is_not_in_the_world_of_the_workers() -> None:
    roles = (Role(name="worker", count=2), Role(name="evaluator", count=1, must_return=False))
    gang = Plan(kind="allreduce", roles=roles, is_gang=True).members
    endpoints = ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3"]
    assert gang_variables("torch", gang, endpoints, 1, (1, 2))["WORLD_SIZE"] == "2"
    assert gang_variables("jax", gang, endpoints, 1, (1, 2))["JAX_NUM_PROCESSES"] == "2"
    assert gang_variables("torch", gang, endpoints, 2, (0, 1)) == {}
    assert '"evaluator"' in gang_variables("tensorflow", gang, endpoints, 2, (0, 1))["TF_CONFIG"]
