"""What a person can be told once the records are deleted."""

from __future__ import annotations

from tests.egress.conftest import World


def test_the_note_names_each_model_that_was_made_with_what_was_deleted(world: World) -> None:
    path = f"/v1/datasets/{world.dataset}"
    job = world.first
    assert world.call("GET", f"{path}/erasure-note").json()["type"] == "/problems/wrong-state"
    assert world.call("DELETE", f"{path}/content").status_code == 200
    note = world.call("GET", f"{path}/erasure-note").json()
    (erased,), (model,) = note["erased"], note["models"]
    assert (erased["label"], erased["retired"]) == ("first", False) and erased["content_deleted_at"]
    assert (model["job"], model["certificate"], model["used"], model["files_kept"]) == (job, job, ["first"], True)
    assert model["epsilon"]["value"] <= 0.5 and 0.01 < model["found_at_one_percent"] < 0.05
    assert world.call("GET", f"{path}/erasure-note", world.scene.analyst).status_code in (403, 404)
    page = world.call("GET", f"/dashboard/datasets/{world.dataset}/erasure-note")
    assert page.status_code == 200 and job in page.text
    world.ask(job)
    listed = world.call("GET", f"/dashboard/jobs/{job}/egresses")
    assert listed.status_code == 200 and "University Hospital" in listed.text
