"""Training with DistributedDataParallel, and what must be true of it."""
# mypy: allow-untyped-defs, allow-untyped-calls

STEPS = 10


def model_of(torch):
    """The same on every rank and in every process."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


def train(one):
    torch = one.torch
    model = torch.nn.parallel.DistributedDataParallel(model_of(torch).to(one.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(one.rank)
    for number in range(STEPS):
        one.step("training step %d of %d" % (number + 1, STEPS))
        x = torch.randn(16, 32, device=one.device)
        y = torch.randint(0, 10, (16,), device=one.device)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return "%d steps" % STEPS
